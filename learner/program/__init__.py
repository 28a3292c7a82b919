"""Programs of described networks, in numpy: forwards for acting, also backwards for learning."""
