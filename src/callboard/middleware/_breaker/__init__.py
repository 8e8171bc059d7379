"""`CircuitBreaker`: calls of a failing tool are refused for a while."""
