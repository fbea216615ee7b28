#include "driver/text/post_processor.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "driver/text/model/vocabulary.h"

namespace lockstep::text {
namespace {

constexpr int kMaxDepth = 16;

// Returns the ids of a special token of the template.
std::vector<int32_t> SpecialIds(const Node& special_tokens, const Node& name) {
  const Node special = special_tokens.At(name.String().c_str());
  special.AllowKeys({"id", "ids", "tokens"});
  std::vector<int32_t> ids;
  for (const Node& id : special.At("ids").Elements())
    ids.push_back(static_cast<int32_t>(id.Integer(0, kMaxId)));
  return ids;
}

void ReadTemplate(const Node& node, PostProcessor& post) {
  node.AllowKeys({"type", "single", "pair", "special_tokens"});
  PostProcessor own;
  bool after_text = false;
  for (const Node& piece : node.At("single").Elements()) {
    piece.AllowKeys({"SpecialToken", "Sequence"});
    if (piece.json().size() != 1) piece.Fail("expected one key, SpecialToken or Sequence");
    if (const std::optional<Node> sequence = piece.Find("Sequence")) {
      sequence->AllowKeys({"id", "type_id"});
      if (sequence->At("id").String() != "A" || after_text)
        sequence->Fail("a template for one text holds the sequence \"A\" once");
      after_text = true;
      continue;
    }
    const Node token = piece.At("SpecialToken");
    token.AllowKeys({"id", "type_id"});
    std::vector<int32_t>& ids = after_text ? own.suffix : own.prefix;
    const std::vector<int32_t> more = SpecialIds(node.At("special_tokens"), token.At("id"));
    ids.insert(ids.end(), more.begin(), more.end());
  }
  if (!after_text) node.At("single").Fail("the sequence \"A\" is missing");
  post.prefix.insert(post.prefix.begin(), own.prefix.begin(), own.prefix.end());
  post.suffix.insert(post.suffix.end(), own.suffix.begin(), own.suffix.end());
}

void ReadStep(const Node& node, int depth, PostProcessor& post) {
  if (depth > kMaxDepth) node.Fail("post-processors are nested too deeply");
  const std::string& type = node.At("type").String();
  if (type == "TemplateProcessing") {
    ReadTemplate(node, post);
  } else if (type == "ByteLevel") {
    node.AllowKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  } else if (type == "Sequence") {
    node.AllowKeys({"type", "processors"});
    for (const Node& one : node.At("processors").Elements()) ReadStep(one, depth + 1, post);
  } else {
    node.Fail(
        absl::StrCat("the post-processor \"", type,
                     "\" is not known; known are TemplateProcessing, ByteLevel and Sequence"));
  }
}

}  // namespace

PostProcessor PostProcessor::Read(const Node& node) {
  PostProcessor post;
  if (!node.IsNull()) ReadStep(node, 0, post);
  return post;
}

}  // namespace lockstep::text
