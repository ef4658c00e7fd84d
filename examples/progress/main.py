"""One command starts all of it: a server, a worker, two gateways and the page. `python examples/progress/main.py`."""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from contextlib import AsyncExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from landscape import COLUMNS, LINES, Landscape

from veredus import App, current

HERE = Path(__file__).parent
FILES = {
    "/": (HERE / "static/index.html", "text/html; charset=utf-8"),
    "/page.js": (HERE / "static/page.js", "text/javascript; charset=utf-8"),
    "/style.css": (HERE / "static/style.css", "text/css; charset=utf-8"),
    "/icon.svg": (HERE / "static/icon.svg", "image/svg+xml"),
    "/veredus.js": (HERE.parent.parent / "clients/js/veredus.js", "text/javascript; charset=utf-8"),
}
TILES_PER_STROKE = 8

app = App()  # VEREDUS_REDIS_URL, else a real server embedded on this machine


@app.action("paint", queue="progress", deadline=120)
async def paint(job: int, seed: int, pause: float = 0.03) -> dict[str, object]:
    """Every stroke is a notify, numbered in the log of the client's session before the next one is made."""
    picture = Landscape(seed)
    client = current().client
    places = [(x, y) for y in range(LINES) for x in range(COLUMNS)]
    total = len(places) // TILES_PER_STROKE
    for done in range(1, total + 1):
        part = places[(done - 1) * TILES_PER_STROKE : done * TILES_PER_STROKE]
        tiles = [{"x": x, "y": y, "colour": picture.colour(x, y)} for x, y in part]
        stroke = {"job": job, "done": done, "total": total, "columns": COLUMNS, "lines": LINES, "tiles": tiles}
        await client.notify(stroke, type="stroke")
        await asyncio.sleep(pause)
    await client.notify(type="varnish", title="varnished", when="before")
    await client.notify(type="signed", title=picture.title, content="signed and delivered", when="after")
    return {"title": picture.title, "strokes": total}


def serve_page(port: int, gateways: list[str]) -> ThreadingHTTPServer:
    """The page's files and nothing else, with a policy that lets the page talk to these gateways only."""
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        f"connect-src 'self' {' '.join(gateways)}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/config.json":
                self._answer(200, "application/json", json.dumps({"gateways": gateways}).encode())
            elif path in FILES:
                file, kind = FILES[path]
                self._answer(200, kind, file.read_bytes())
            else:
                self._answer(404, "text/plain; charset=utf-8", b"not here\n")

        def _answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", policy)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8080, help="of the page (default 8080; 0 for any)")
    port = parser.parse_args().port
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app)
        await stack.enter_async_context(app.worker(queues="progress"))
        # Two gateways: what the page resumes after a cut is a session that lives in neither of them.
        both = [app.gateway(ws="127.0.0.1:0", quic="off", http="off") for _ in range(2)]
        gateways = [f"ws://{(await stack.enter_async_context(gateway)).ws_address}/" for gateway in both]
        page = serve_page(port, gateways)
        stack.callback(page.shutdown)
        print(f"open http://127.0.0.1:{page.server_address[1]}/  (Ctrl-C ends it)", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("ended")
