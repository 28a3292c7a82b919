"""A stand-in for a CUDA device: device.cpp is the device, stand_in.py what torch.cuda says of it."""
