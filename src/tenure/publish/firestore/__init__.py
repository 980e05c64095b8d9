"""The Firestore mirror: the documents of Git With Intent, written from the feed."""
