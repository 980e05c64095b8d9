"""`tenure status-server`: the status of runs from published documents, without a database.

Law: this process opens no database and knows no address of one.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.cli.common.options import TlsCert, TlsKey
from tenure.cli.common.server_extra import require_server_extra

_EPILOG = """
Examples:

tenure serve --publish /srv/runs -- publishes, in another process

tenure status-server --documents /srv/runs -- reads on http://127.0.0.1:8710

tenure status-server --documents s3://bucket/runs --listen 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem

It answers GET /runs/RUN/status, /inbox/stats, /proposals/pending and /events/stream with the keys of the ordinary server, and shows a page
at /page. Start as many as you like. docs/agent-runs.md explains what is published.
"""

app = typer.Typer()


@app.command(epilog=_EPILOG)
def status_server(
    documents: Annotated[
        str,
        typer.Option(
            "--documents",
            envvar="TENURE_DOCUMENTS",
            metavar="DIR|s3://BUCKET/PREFIX",
            help="Where the documents are published.",
        ),
    ],
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="The address to listen on; port 0: any free port."
        ),
    ] = "127.0.0.1:8710",
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy in front of it terminates TLS.")
    ] = False,
) -> None:
    """Serve the status of agent runs from published documents, without a database. Logs go to stderr.

    What the publisher has written is what readers see: if the publisher stops, they see the last state; if the storage cannot be reached, they
    get UPSTREAM_UNAVAILABLE.
    """
    require_server_extra("httptools", "uvicorn")
    import asyncio

    from tenure.status_server.http_server import StatusSettings, serve_documents

    asyncio.run(
        serve_documents(
            StatusSettings(
                documents=documents,
                listen=listen,
                tls_cert=tls_cert,
                tls_key=tls_key,
                behind_proxy=behind_proxy,
            )
        )
    )
