"""The demonstration: a release that survives the death of its worker."""
