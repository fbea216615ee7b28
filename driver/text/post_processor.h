// Post-processors of tokenizer.json: the special tokens before and behind a text.
//
//   PostProcessor post = PostProcessor::Read(root.At("post_processor"));
//   ids.insert(ids.begin(), post.prefix.begin(), post.prefix.end());
//   ids.insert(ids.end(), post.suffix.begin(), post.suffix.end());
//
// Known: TemplateProcessing (its template for one text), ByteLevel (which concerns offsets only)
// and Sequence. Any other type is an error that names its path.

#ifndef LOCKSTEP_DRIVER_TEXT_POST_PROCESSOR_H_
#define LOCKSTEP_DRIVER_TEXT_POST_PROCESSOR_H_

#include <cstdint>
#include <vector>

#include "driver/text/json/json_node.h"

namespace lockstep::text {

struct PostProcessor {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;

  // Reads the object, or null. Throws FormatError.
  static PostProcessor Read(const Node& node);
};

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_POST_PROCESSOR_H_
