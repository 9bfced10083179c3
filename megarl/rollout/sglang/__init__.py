"""SGLang servers as rollout engines."""
