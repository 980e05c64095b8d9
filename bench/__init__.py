"""Tenure's benchmark: every figure against what the same machine can do bare, in the same run."""
