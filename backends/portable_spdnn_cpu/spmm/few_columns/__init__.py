"""C = A B for a pruned A and a dense B of few columns: matrices times vectors, nearly."""
