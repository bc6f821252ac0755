"""`agentkv chat`: a window to talk to, and to watch."""
