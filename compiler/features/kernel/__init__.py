"""compiler/features/kernel"""
