"""The one way out of a sandbox: a proxy per run, on a unix socket, with rules for everything.

The sandbox has no network device. Where a contract opens the network at all, a folder with one
socket is put into it; a small program inside carries its own port 3128 there (`forward.py` of the
sandbox), and `http_proxy` and `https_proxy` name that port. Which run is asking is told by the
socket, so no run can use another one's rules.

    rules      a rule, and whether one permits what is wanted                      (core)
    addresses  which addresses a name may not lead to                              (core)
    heads      one HTTP request and the head of its answer, read strictly          (core)
    sni        the name in a TLS ClientHello                                       (core)
    tally      what was tried, counted so that a flood stays small                 (core)
    proxy      the proxy itself: asyncio and the standard library, no framework

What passes: plain HTTP, one request per connection, and TLS through CONNECT. Nothing else does: a
tunnel whose first bytes are no ClientHello for the very name that was asked for is cut, and so is
one whose ClientHello is encrypted. What is inside TLS is not seen. A rule for a host is therefore
a rule for whatever that host does with a request, which is why it should be narrow and short.
"""
