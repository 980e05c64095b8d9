"""What a finished run leaves to those who were not there: a bundle, its signed statement, and how both are checked.

`archive` packs and unpacks, `contents` says which files there are, `bundle` builds, `statement` signs, `sealer` does so for every
run that ends, `verify` checks with nothing but the files.
"""
