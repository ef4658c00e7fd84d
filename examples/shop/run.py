"""One command starts the shop: a server, a worker, a gateway, the web shop and the back office.

pip install 'veredus[embedded,fastapi,django]' uvicorn
python examples/shop/run.py
"""

import argparse

import uvicorn
from shop.web import web

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    port = parser.parse_args().port
    print(f"open http://127.0.0.1:{port}/  (Ctrl-C ends it)", flush=True)
    uvicorn.run(web, host="127.0.0.1", port=port, log_level="warning")
