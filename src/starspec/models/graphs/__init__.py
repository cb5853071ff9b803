"""Small forwards in fixed shapes, recorded once as CUDA graphs and replayed."""
