#!/usr/bin/env python3
"""The shop's side of Seckill, to copy into your shop: tokens for its customers, and the receiver of their orders.

As it stands it is a small shop of its own, `python3 shop.py 9000`, with Python's standard library only. docs/shop.md leads through it, and
tests/api/operations/documents.rs runs it. Both settings are the service's, too.
"""

import base64
import hashlib
import hmac
import html
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

TOKEN_KEY = os.environ["SECKILL_AUTH__JWT_SECRET"].encode()
WEBHOOK_KEYS = [base64.b64decode(key.removeprefix("whsec_")) for key in os.environ["SECKILL_SHOP__WEBHOOK_SECRETS"].split(",")]


def token(customer, level=0, seconds=3600):
    """What a customer buys with (a JWT). `customer` is an id that never changes. Give it only to that customer, once signed in."""

    def part(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    head = part(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
    claims = part(json.dumps({"sub": customer, "level": level, "exp": int(time.time()) + seconds}).encode())
    signed = head + b"." + claims
    return (signed + b"." + part(hmac.new(TOKEN_KEY, signed, hashlib.sha256).digest())).decode()


def is_from_seckill(headers, body):
    """Whether a webhook is genuine and recent, by its signature (Standard Webhooks). `body` is the bytes as they came."""
    webhook_id, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not sent_at.isdigit() or abs(time.time() - int(sent_at)) > 300:
        return False
    signed = f"{webhook_id}.{sent_at}.".encode() + body
    ours = [base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in WEBHOOK_KEYS]
    given = [one.removeprefix("v1,") for one in headers.get("webhook-signature", "").split(" ")]
    return any(hmac.compare_digest(one, other) for one in ours for other in given)


# A shop keeps the ids in its database, and writes each in the transaction that processes the message: messages may come twice.
seen = set()


def process(message):
    order = message["data"]
    print(f"{order['order_id']} of {order['user_id']} is {order['status']}", flush=True)


# The page after your own sign-in. It must have the origin of the sales' pages, which read the token from there.
SIGNED_IN = """<!doctype html><html lang="en"><title>Shop</title><p>Welcome, {name}. <a href="/">To the sales</a>
<script>localStorage.setItem("seckill.token", {token})</script>"""


class Shop(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(min(int(self.headers.get("content-length", 0)), 65536))
        if self.path != "/seckill" or not is_from_seckill(self.headers, body):
            return self.answer(401, "")
        if self.headers["webhook-id"] not in seen:
            process(json.loads(body))
            seen.add(self.headers["webhook-id"])
        self.answer(204, "")

    def do_GET(self):
        address = urlsplit(self.path)
        # Only here: a shop takes the customer from its own session, never from the address.
        customer = parse_qs(address.query).get("customer", ["ann"])[0]
        if address.path == "/token":
            self.answer(200, token(customer))
        elif address.path == "/signed-in":
            self.answer(200, SIGNED_IN.format(name=html.escape(customer), token=json.dumps(token(customer))))
        else:
            self.answer(404, "")

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Shop).serve_forever()
