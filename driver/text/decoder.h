// Decoders of tokenizer.json: from tokens back to text, token by token.
//
//   DecoderPlan plan = DecoderPlan::Read(root.At("decoder"));
//   Decoder decoder(plan);
//   std::string text = decoder.Push("Hel");  // what is certain by now
//   text += decoder.Push("lo");
//   text += decoder.Finish();
//
// All the text at once is the same as the pieces one behind the other, because it is made of them.
// Bytes of a character that is not complete wait for the next token; so do bytes that
// ByteFallback may yet have to refuse, and spaces that Strip may yet have to remove.
//
// Known: ByteLevel, ByteFallback, Metaspace, Fuse, Strip, Replace of a string, Sequence. Any other
// type is an error that names its path. A plan is thread-safe, a decoder is not.

#ifndef LOCKSTEP_DRIVER_TEXT_DECODER_H_
#define LOCKSTEP_DRIVER_TEXT_DECODER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "driver/text/json/json_node.h"

namespace lockstep::text {

// One decoder of a sequence.
struct DecoderStep {
  enum class Kind {
    kByteLevel,     // characters of the byte-level alphabet to bytes; fuses
    kByteFallback,  // runs of <0x41> to bytes
    kMetaspace,     // `pattern` to a space; removed from the first token where `drop_first`
    kFuse,          // all tokens become one
    kStrip,    // up to `start` times `pattern` at the start of a token, `stop` times at its end
    kReplace,  // `pattern` to `content`
    kJoin,     // a space between tokens: where the file has no decoder
  };
  Kind kind;
  std::string pattern = {};
  std::string content = {};
  bool drop_first = false;
  int64_t start = 0;
  int64_t stop = 0;
};

struct DecoderPlan {
  std::vector<DecoderStep> steps;

  // Reads the object, or null. Throws FormatError.
  static DecoderPlan Read(const Node& node);
};

class Decoder {
 public:
  // `plan` outlives the decoder.
  explicit Decoder(const DecoderPlan& plan) : plan_(&plan), states_(plan.steps.size()) {}

  // Returns the text that `token` completes; `token` is valid UTF-8.
  std::string Push(std::string_view token);

  // Returns the text that waited for more. The decoder is then as new.
  std::string Finish();

 private:
  // The state of a step: what it has seen of its current token, and the bytes that it holds back.
  struct State {
    std::string held;
    bool is_first = true;  // no token has ended yet
    int64_t stripped = 0;
  };

  void Feed(size_t step, std::string_view chunk, bool ends_token, std::string& out);
  void End(size_t step, std::string& out);
  void FeedFallback(size_t step, std::string_view token, std::string& out);
  void FeedReplace(size_t step, std::string_view chunk, bool ends_token, std::string& out);
  void FeedStrip(size_t step, std::string_view chunk, bool ends_token, std::string& out);
  void FlushBytes(size_t step, std::string& out);

  const DecoderPlan* plan_;
  std::vector<State> states_;
};

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_DECODER_H_
