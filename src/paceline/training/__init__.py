"""Training of small heads on labels that the target itself makes; nothing here runs at decoding.

Mismatches between drafts and target are collected while the target decodes prompts, each is
labelled by letting the target go on from it, and a linear head is fitted to the labels.
"""
