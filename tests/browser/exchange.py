"""A page that goes through a scripted exchange with a gateway and reloads itself at chosen points of it; a program.

A point is each moment before or after something passes between the page's client and its WebSocket. What the page has
handled is kept in sessionStorage, so that it counts across reloads.
"""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from veredus import App, current

CLIENT = Path(__file__).parents[2] / "clients/js/veredus.js"
STEPS = 2
PAGE = """<!doctype html><title>going on</title><link rel="icon" href="data:,"><script type="module">
import { Session } from '/veredus.js';
const asked = new URLSearchParams(location.search);
const note = (name, value) => sessionStorage.setItem(name, JSON.stringify(value));
const noted = (name, other) => JSON.parse(sessionStorage.getItem(name)) ?? other;
note('loads', noted('loads', 0) + 1);

let standing = false; // a page that is being reloaded hears and says nothing more
function point(name) {
  if (standing) return false;
  const points = [...noted('points', []), name];
  note('points', points);
  const every = Number(asked.get('every'));
  if (points.length === Number(asked.get('at')) || (every && points.length % every === 0)) {
    standing = true;
    location.reload();
  }
  return !standing;
}
// Whether it will not be reloaded any more; false if a reload is under way.
window.rest = () => !standing && (standing = true);
class Watched extends WebSocket {
  constructor(...given) { point('before connecting'); super(...given); point('connecting'); }
  set onopen(call) { super.onopen = (event) => { if (point('before open')) { call(event); point('open'); } }; }
  set onmessage(call) {
    super.onmessage = (event) => {
      const names = event.data.trim().split('\\n').map((line) => JSON.parse(line).t).join('+');
      if (point(`before ${names}`)) { call(event); point(names); }
    };
  }
  send(text) {
    const name = JSON.parse(text).t;
    if (point(`before ${name}`)) { super.send(text); point(name); }
  }
}

const session = new Session('GATEWAY', { token: asked.get('user'), storage: true, WebSocket: Watched });
const ask = () => {
  const step = noted('seen', []).filter((item) => item.at(-1) === 'done').length;
  if (step === STEPS) document.title = 'finished';
  else session.request('step', { number: step }).catch(() => {});
};
session.on('connected', ({ id }) => note('sessions', [...new Set([...noted('sessions', []), id])]));
session.on('message', (item) => {
  if (item.body?.at?.(-1) === 'again') return; // asked twice, because the page did not know whether it had been heard
  note('seen', [...noted('seen', []), item.body ?? [item.kind]]);
  if (item.kind === 'response') ask();
});
for (const name of ['gap', 'discontinuity', 'error']) {
  session.on(name, () => note('seen', [...noted('seen', []), [name]]));
}
ask();
</script>"""

app = App()
_begun: set[tuple[str, int]] = set()
_runs: set[str] = set()


@app.action("step", queue="exchange")
async def step(number: int) -> list[object]:
    """As an application would: what was asked for twice is done once. A task that runs twice is another matter."""
    client = current().client
    if current().id in _runs:
        await client.notify([number, "ran twice"])
    _runs.add(current().id)
    if (client.user, number) in _begun:
        return [number, "again"]
    _begun.add((client.user, number))
    await app.push([number, "push"], user=client.user)
    await client.notify([number, "notify"])
    await client.notify([number, "after"], when="after")
    return [number, "done"]


def serve_page(gateway: str) -> ThreadingHTTPServer:
    page = PAGE.replace("GATEWAY", gateway).replace("STEPS", str(STEPS)).encode()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_client = self.path == "/veredus.js"
            body = CLIENT.read_bytes() if is_client else page
            self.send_response(200)
            self.send_header("Content-Type", "text/javascript" if is_client else "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


async def main() -> None:
    gateway = app.gateway(ws="127.0.0.1:0", quic="off", http="off")
    async with app, app.worker(queues="exchange"), gateway:
        page = serve_page(f"ws://{gateway.ws_address}/")
        print(f"http://127.0.0.1:{page.server_address[1]}/", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
