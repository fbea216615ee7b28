--- The folders of the families in lockstep.models.families.

return { "mistral", "ministral", "smollm3", "granite", "gemma3", "gemma3_v4", "olmo2", "olmo3", "phi3", "mixtral",
  "gpt_oss", "deepseek_v3", "deepseek_v3_plain", "qwen3_next" }
