"""The guard: watches the neighbours' inter-token latency and holds the farm back when it suffers.

``windows`` turns time stamps into what one neighbour felt, ``baseline`` says what is normal for it,
``decide`` is the pure rule, ``simulate`` a neighbour to try the rule on.
"""
