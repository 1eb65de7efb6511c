"""Foreword in front of what it is for: a real vLLM, and real coding agents. Opt-in; see README.md in this folder."""
