"""The official table of the Sparse DNN Graph Challenge, network by network."""
