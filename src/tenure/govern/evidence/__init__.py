"""Evidence of finished runs: a bundle of files, its signed statement, and their verification.

`archive` packs and unpacks, `contents` defines the files, `bundle` builds them, `statement` signs them, `sealer` seals every run that ends,
and `verification` checks a bundle with nothing but its files.
"""
