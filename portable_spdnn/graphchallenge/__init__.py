"""The Sparse DNN Graph Challenge: configurations, generated networks, text files."""
