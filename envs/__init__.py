"""The worlds: Gymnasium environments and the wrappers that fit all of them."""
