"""vLLM servers as rollout engines."""
