--- The folders of the families in lockstep.models.families.

return { "mistral", "ministral", "smollm3", "granite" }
