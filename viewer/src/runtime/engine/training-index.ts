// Parses a page's list of the model sizes and texts for training. A page that embeds a model loads this module only for
// training.

import trainingSchema from "../../../schema/training.schema.json";
import { byName, checked, type Listed, type Offer, type TrainingIndex } from "./manifest";

export function parseTraining(document: unknown, name: string): TrainingIndex {
  const index = checked(trainingSchema, document, name) as Omit<TrainingIndex, "sizes"> & { sizes: Listed<Offer>[] };
  return { ...index, sizes: index.sizes.map((offer) => ({ ...offer, activations: byName(offer) })) };
}
