"""`agentkv diagnose`: what reuse costs on the user's own model and texts, and a cost table made of it."""
