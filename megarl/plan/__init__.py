"""What a recipe costs, by arithmetic alone: parameters, memory and communication. Needs neither torch nor Megatron."""
