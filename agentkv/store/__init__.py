"""Where KV and patches are kept when no window holds them."""
