"""What others tell us: verified, taken down, mapped by rules, carried out once."""
