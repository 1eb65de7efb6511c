"""A real vLLM on the CPU, with a tiny model made here, and what Foreword does in front of it."""
