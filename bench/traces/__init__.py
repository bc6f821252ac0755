"""Conversations of agents with their tools, as material for prompts that shift."""
