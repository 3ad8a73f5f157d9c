"""The gateway: a process beside a rank. It takes requests from other hosts, over TCP with CURVE, and passes them to the agent.

It holds what the engine's process must not hold: libzmq, connections of unknown clients, their buffers. If it fails or
is killed, the engine is not affected, and the agent starts another one (:mod:`pdctl.agent.gateway`). It ends with its
rank.

    clients ── TCP ── relay (counts frames, bounds buffers) ── Unix socket ── door (libzmq: CURVE, authorisation)
                                                                                │
                                       the rank's socket ── link (one question at a time) ──┘
"""
