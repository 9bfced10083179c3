"""What runs on a GPU alone. Nothing here is imported on a CPU, except by tests that ask for Triton's interpreter."""
