"""The policies that VELTAIR is compared with, each in a module of its name. `policies.by_name` imports them."""
