"""The link without a socket."""
