"""C = A B for a pruned A and a dense B of few columns, 1 to 15: matrices times vectors, nearly."""
