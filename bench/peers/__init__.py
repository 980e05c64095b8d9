"""Peers: other durable execution systems, measured in the same run on the same machine, each with its best known settings.

Laws:
1. A peer runs in its own process, from its own environment under `.bench/`. Tenure's environment has no peer.
2. The code in a peer's process (`protocol.py`, `usage.py` and one module per peer) imports only the standard library, the peer
   and each other. The rest runs in the process of the bench.
3. A peer that cannot be installed or started is reported as not measured, with the reason. All numbers are measured here.
4. Everything uses the loopback or a Unix socket, is bounded in time, and is ended by its process id, also after an error.
"""
