"""`CircuitBreaker`: middleware that refuses calls of a failing tool for a while."""
