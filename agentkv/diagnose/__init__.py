"""`agentkv diagnose`: what reuse costs on the user's own model and texts."""
