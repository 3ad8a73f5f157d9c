"""The gateway: a process beside a rank that takes requests from other hosts, over TCP with CURVE, and hands them to its agent.

It holds all that the engine's process must not: libzmq, connections of strangers, their buffers. Where it breaks, or is
killed, the engine notices nothing and the agent starts another one (:mod:`pdctl.agent.gateway`). It ends with its rank.

    strangers ── TCP ── relay (counts frames, bounds what waits) ── Unix socket ── door (libzmq: CURVE, who may come in)
                                                                                     │
                                            the rank's socket ── link (one question at a time) ──┘
"""
