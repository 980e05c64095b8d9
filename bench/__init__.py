"""Tenure's benchmark: every figure is compared with what the bare database or a peer does on the same machine, in the same run."""
