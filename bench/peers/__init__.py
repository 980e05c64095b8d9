"""Other systems of our kind, measured in the same run on the same machine, each at its best setting found.

Laws:
1. A peer runs in its own process, from its own environment under `.bench/`: Tenure's never depends on one.
2. What runs there (`protocol.py`, `usage.py` and one module per peer) imports the standard library and the peer, and
   nothing else of ours. What measures (the rest) runs here.
3. A peer that cannot be had is reported as not measured, with the reason. No number is ever taken from elsewhere.
4. Everything is on this machine's loopback or a Unix socket, bounded in time, and ended by its id, after an error too.
"""
