"""One module per question: ``python -m benchmarks.order_speed``, or ``python -m benchmarks`` for all of them."""
