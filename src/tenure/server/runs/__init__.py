"""Runs over HTTP: started once under a key, found by workflow, looked at, waited for, decided about."""
