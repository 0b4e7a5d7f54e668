// Parses the list of model sizes and texts of a page that trains. A page that embeds a model loads this module only
// when it trains.

import trainingSchema from "../../../schema/training.schema.json";
import { byName, checked, type Listed, type Offer, type TrainingIndex } from "./manifest";

export function parseTraining(document: unknown, name: string): TrainingIndex {
  const index = checked(trainingSchema, document, name) as Omit<TrainingIndex, "sizes"> & { sizes: Listed<Offer>[] };
  return { ...index, sizes: index.sizes.map((offer) => ({ ...offer, activations: byName(offer) })) };
}
